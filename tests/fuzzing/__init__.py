"""Files that are almost right, and what their readers may do with them."""
