//! The embedding table: rows, index, initialisers, optimisers. Pure: no I/O, no clock, no threads of its own.
