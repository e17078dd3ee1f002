"""The course: what each lesson is for, its tasks, checks that answer, and copies to work on.

Lessons call `check.task("02-3", answer)`, from `mirrorlake_lab.course import check`.
"""
