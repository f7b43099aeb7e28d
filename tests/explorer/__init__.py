"""Every reachable state of the Binary Star, each once: two production machines and a small, bounded network.

``memory`` keeps what decides a machine's next step as a value, and steps it; ``model`` is the pair: two
processes, the two directions of the peer link, and what may befall them, each kind of fault with a budget;
``canonical`` gives states that differ in names only one form; ``search`` visits them, breadth first;
``calm`` asks from each of them whether the pair recovers; ``scripts`` writes a path as a text and replays
it on machines that live through it without any of this. docs/simulation.md says what is explored and what
was found.
"""
