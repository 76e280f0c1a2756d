"""Run functions in killable worker processes: `IsolatedPool`.

For code that may hang, crash or eat memory, such as the evaluation of a model's answers. A call that exceeds its limits
costs itself only: its worker is killed and replaced. Usable from any thread, any event loop and any process.
"""

from __future__ import annotations

from vime.isolation.limits import reward_limit_paused
from vime.isolation.pool import IsolatedError, IsolatedPool, IsolatedTimeout

__all__ = ["IsolatedError", "IsolatedPool", "IsolatedTimeout", "reward_limit_paused"]
