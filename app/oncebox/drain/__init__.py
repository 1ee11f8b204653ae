"""From a durable row to its effect: claim, deliver, settle."""
