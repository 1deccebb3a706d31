"""What `pip install .` in the repository's root calls: the setuptools backend, working in this folder."""

import os
import pathlib

os.chdir(pathlib.Path(__file__).resolve().parent)

from setuptools.build_meta import *  # noqa: E402, F401, F403
