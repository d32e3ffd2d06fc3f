"""A Fleet -> what is handed out: numbers, document, metric families, comparisons."""
