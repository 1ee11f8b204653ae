"""From the wire to a durable row: read, verify, name, store."""
