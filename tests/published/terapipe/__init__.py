"""TeraPipe's published tables, predicted from stated constants, beside our orders: docs/comparison/terapipe.md."""
