-- Version 4: move tasks that move only the messages that match a filter.

ALTER TABLE move_task ADD COLUMN scan TEXT; -- JSON: the filter, and how far the task has looked; NULL moves everything
