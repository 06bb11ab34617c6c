"""Small jobs of one file each, to read and to start from: ``python -m examples.word_count``."""
