"""What is left out of a corpus beside what is too long: a module a kind of filter, put together by `text_filters`."""
