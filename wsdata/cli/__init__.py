"""The command line: words in, library calls, words or JSON out."""
