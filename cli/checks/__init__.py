"""What `reprise doctor` looks at: the machine, the disk and the port, and a model that answers."""
