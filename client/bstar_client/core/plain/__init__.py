"""Sessions of clients in protocols without request numbers of ours: MDP/0.2, Lazy Pirate, Freelance."""
