"""Messages between server and clients: values only, no input or output, no mathematics."""
