"""Object storage: one interface, a local folder and S3 behind it."""
