"""Imported by the fork server of an IsolatedPool before anything else, and by nothing in the main process.

Importing it gives this process, and so every worker forked from it, one thread for OpenMP and the BLAS libraries, which
read these variables when they are loaded. Threads that spin in a reward worker would slow the engine and the trainer.
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ[_variable] = "1"
