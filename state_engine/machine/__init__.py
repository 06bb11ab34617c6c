"""What the machine must have: settings, a Java, Delta's jars, trusted certificates."""
