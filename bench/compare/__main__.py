import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from compare import cli  # noqa: E402  (the path above first)

if __name__ == "__main__":
    sys.exit(cli.main())
