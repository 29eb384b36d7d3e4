"""The jobs that the Intelligence Plane manages: submit, list, explain, cancel, and look after them."""
