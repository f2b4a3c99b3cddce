"""Snapshots of committed store versions in object storage: taken, listed, restored, collected."""
