"""All benchmarks in one run: parts in processes of their own, their figures as JSON, and one page made of them."""
