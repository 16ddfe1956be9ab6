"""A user's own data: files become clients, tables become arrays by a schema, and every problem is named."""
