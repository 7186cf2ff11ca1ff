"""Code that comes with models, such as chat templates, in processes of their own that can be killed."""
