"""Models of every kind behind one interface (see interp.models.head_model)."""
