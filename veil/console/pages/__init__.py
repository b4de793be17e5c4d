"""The pages by subject; each file puts its routes into the table when it is imported, with the first visit."""
