"""The files of the page at /ui. They are sent as they are: nothing has to be built."""
