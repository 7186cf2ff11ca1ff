"""The checks of `reprise doctor`: of the machine, the disk and the port, and of a model that answers."""
