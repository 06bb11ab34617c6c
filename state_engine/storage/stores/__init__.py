"""Files on disks and in stores: how they are reached, read, written, synced and locked, and what failures mean."""
