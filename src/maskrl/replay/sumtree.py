"""A sum tree: draw indices in proportion to their values. A write or a draw takes log2(n) steps, for all indices at once."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


class SumTree:
    """The leaves 0 … size - 1, initially 0; every other node is the sum of its two children."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"size={size} must be at least 1.")
        self._size, self._depth = size, (size - 1).bit_length()
        self._first = 1 << self._depth  # the node of leaf 0; node 1 is the root, node 0 is unused
        self._nodes = np.zeros(2 * self._first)
        self._children = self._nodes.reshape(-1, 2)  # a view: row i holds the nodes 2i and 2i + 1
        self._largest = float(np.finfo(np.float64).max) / self._first  # so that sums do not overflow

    @staticmethod
    def forecast(size: int) -> int:
        """The bytes of a tree with this many leaves."""
        return 2 * np.dtype(np.float64).itemsize << (size - 1).bit_length()

    @property
    def nbytes(self) -> int:
        return self._nodes.nbytes

    def __len__(self) -> int:
        return self._size

    @property
    def total(self) -> float:
        return float(self._nodes[1])

    def __getitem__(self, indices: ArrayLike) -> NDArray[np.float64]:
        """A copy of the leaves at these indices (N,)."""
        values: NDArray[np.float64] = self._nodes[self._to_nodes(indices)]
        return values

    def set(self, indices: ArrayLike, values: ArrayLike) -> None:
        """Write the values (N,) to the leaves (N,). If an index occurs twice, its first value counts."""
        nodes, values = self._to_nodes(indices), self._checked(values)
        if nodes.shape != values.shape:
            raise ValueError(f"Each index needs one value; got indices {nodes.shape} and values {values.shape}.")
        self._nodes[nodes[::-1]] = values[::-1]  # numpy keeps the last of several writes to one index
        for _ in range(self._depth):
            nodes = nodes >> 1  # siblings write the same sum twice, which is cheaper than finding them
            children = self._children[nodes]
            self._nodes[nodes] = children[:, 0] + children[:, 1]  # not by differences, so rounding errors do not add up

    def load(self, leaves: ArrayLike) -> None:
        """Set the first leaves to these and the others to 0. The sums are the same as after any order of `set`."""
        leaves = self._checked(leaves)
        if len(leaves) > self._size:
            raise ValueError(f"{len(leaves)} leaves do not fit into a tree of {self._size}.")
        self._nodes[self._first :] = 0
        self._nodes[self._first : self._first + len(leaves)] = leaves
        for level in range(self._depth - 1, -1, -1):
            children = self._children[1 << level : 2 << level]
            self._nodes[1 << level : 2 << level] = children[:, 0] + children[:, 1]

    def find(self, targets: ArrayLike) -> NDArray[np.int64]:
        """For each target in [0, total] the leaf i with sum(leaves[:i]) ≤ target < sum(leaves[:i + 1]), up to rounding.

        Never returns a leaf of 0. The total itself, which `random() * total` may round to, gives the last leaf above 0.
        """
        rest = np.array(targets, np.float64)
        if rest.ndim != 1 or not ((rest >= 0) & (rest <= self.total)).all():
            raise ValueError(f"Targets must be of shape (N,) and lie in [0, {self.total}], the total; got {rest}.")
        if self.total == 0:
            raise ValueError("All leaves are 0, so there is none to find. Set one to a positive value first.")
        nodes = np.ones(len(rest), np.int64)
        for _ in range(self._depth):
            # Every node on the path is above 0. The right one is checked; the left one is larger than the rest, which
            # is not negative, or it equals its parent. Rounding may leave a rest that is too large for the
            # parent; then the path leads to the parent's last leaf above 0.
            left, right = self._children[nodes].T
            goes_right = (rest >= left) & (right > 0)
            rest -= left * goes_right
            nodes = 2 * nodes + goes_right
        return nodes - self._first

    def _to_nodes(self, indices: ArrayLike) -> NDArray[np.int64]:
        indices = np.asarray(indices, np.int64)
        if indices.ndim != 1 or ((indices < 0) | (indices >= self._size)).any():
            raise IndexError(f"Indices must be of shape (N,) and lie in [0, {self._size}); got {indices}.")
        return indices + self._first

    def _checked(self, values: ArrayLike) -> NDArray[np.float64]:
        values = np.asarray(values, np.float64)
        if values.ndim != 1 or not ((values >= 0) & (values <= self._largest)).all():  # False for NaN
            raise ValueError(
                f"Leaves must be of shape (N,), finite, not negative and at most {self._largest:.3g}; got {values}."
            )
        return values
