"""Before anything is imported: nothing that a test measures goes into the user's cache."""

import os
import tempfile

os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="reprise-tests-")
