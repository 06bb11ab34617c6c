"""Small jobs of one file each, to read: ``python -m examples.word_count``. To start from: ``statelake init``."""
