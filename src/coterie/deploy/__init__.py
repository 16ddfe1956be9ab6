"""A federation deployed over Flower: the server, the sites, their keys, policies and audit logs."""
