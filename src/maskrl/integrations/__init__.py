"""Objectives for agents of other libraries. Each module needs the library it is named after; import it explicitly."""
