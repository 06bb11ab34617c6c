"""What files give besides their rows: values in their paths, and the ends that tell them apart."""
