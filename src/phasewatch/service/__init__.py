"""What runs for long: configuration, polling, the rounds of `serve`."""
