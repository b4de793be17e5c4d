"""What is done to data outside of a running server: copied, checked, and saved from damage."""
