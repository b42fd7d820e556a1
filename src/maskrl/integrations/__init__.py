"""Objectives in the agents of other libraries. Each file needs the library that it is named after, and is imported only on
request.
"""
