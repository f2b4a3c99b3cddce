"""How the database's tables came to be, one step a file. Run by `pipelines.database`."""
