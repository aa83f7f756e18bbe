"""What translations are told about words: terminologies, phrases that must occur, and lexical tables for shortlists."""
