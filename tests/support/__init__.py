"""What the attack tests stand on: accounts, builders and the runner of boxes."""
