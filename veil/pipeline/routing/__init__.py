"""Routing: one intake queue, and for each message the queue whose timeout suits the time that its work takes."""
