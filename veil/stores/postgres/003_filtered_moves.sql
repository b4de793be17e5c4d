-- Move tasks that move only the messages that match a filter.
ALTER TABLE veil.move_task ADD COLUMN scan text; -- JSON: the filter, and how far the task has looked; NULL moves everything
