"""The PostgreSQL backend of the store."""
