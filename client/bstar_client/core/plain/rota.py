"""Whose turn it is: the order in which a session asks its nodes, and how often."""


class Rota:
    """The nodes in turn. ``at`` is the node that is asked now.

    ``attempts_max``: the attempts of one call; None: no limit. ``is_each_once``: no node has two of them
    (FL1-C-02). ``is_held``: every node that may be asked is unreachable, and the first one to connect is
    asked. Only a call with a number of attempts is held; the attempt lasts as long as any other.
    """

    def __init__(self, count: int, attempts_max: int | None, is_each_once: bool) -> None:
        self.at = 0
        self.attempts_max = attempts_max
        self.is_held = False
        self._count = count
        self._is_each_once = is_each_once
        self._attempts = 0
        self._passed_over = 0
        self._asked: set[int] = set()

    def begin(self) -> None:
        """Another call begins, with the node that was asked last."""
        self.is_held = False
        self._attempts = self._passed_over = 0
        self._asked.clear()

    def spend(self) -> bool:
        """An attempt at this node failed. True if it was the last one of the call."""
        self._attempts += 1
        if self._is_each_once:
            self._asked.add(self.at)
        return self._attempts == self.attempts_max

    def go_on(self) -> None:
        """The next attempt is at the next node."""
        self.is_held = False
        self._passed_over = 0
        self._step()

    def pass_over(self) -> bool:
        """This node is unreachable. True if the next one is to be tried at once, False after a round."""
        self._passed_over += 1
        self._step()
        if self._passed_over < self._count - len(self._asked):
            return True
        self._passed_over = 0
        self.is_held = self.attempts_max is not None
        return False

    def turn_to(self, node: int) -> None:
        """A node is reachable: ask it, if any node will do."""
        if self.is_held and node not in self._asked:
            self.is_held = False
            self.at = node

    def _step(self) -> None:
        for _ in range(self._count):
            self.at = (self.at + 1) % self._count
            if self.at not in self._asked:
                return
