"""Objectives in other people's agents. Each file needs the library that it is named after, and nothing here imports it unasked."""
