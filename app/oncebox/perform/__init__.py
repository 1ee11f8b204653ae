"""Perform: one call, one result, the same reply ever after."""
