"""`python -m tests.server.fake_server SCRIPT SETTING=VALUE...`: run the real server with a fake engine.

A name in capitals is a constant of reprise.server.run.
"""

import signal
import sys

from reprise.config.settings import SETTINGS, Settings
from reprise.server import run
from reprise.server.logs import configure_logs
from reprise.server.run import ListenError, bind_address, exposure_error, serve
from tests.server.fake_engine import SCRIPTS, FakeEngine


def main(script: str, *given: str) -> int:
    pairs = dict(pair.split("=", 1) for pair in given)
    for name in filter(str.isupper, pairs):
        setattr(run, name, float(pairs[name]))
    values = {name: SETTINGS[name].parse(text) for name, text in pairs.items() if name in SETTINGS}
    settings = Settings(**{"port": 0, **values})
    configure_logs(settings.log_format, settings.log_level)
    try:
        bound = bind_address(settings.host, settings.port)
    except ListenError as fault:
        print(f"reprise: {fault}", file=sys.stderr)
        return 1
    if error := exposure_error(settings, bound):
        print(f"reprise: {error}", file=sys.stderr)
        return 1
    return serve(FakeEngine(SCRIPTS[script]), settings, bound)


if __name__ == "__main__":
    # Tests that run under nohup have it ignored, and processes inherit that.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.exit(main(*sys.argv[1:]))
