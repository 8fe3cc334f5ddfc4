"""Imported by torch_suite.py's fork server, so that ranks start with torch and the suite loaded."""

import torch_suite

torch_suite.suite_class()
