"""A million short iterations of pure Python in one function, as many in a thousand passes; prints their seconds."""
import time


def walk(steps):
    place = 0.0
    for step in range(steps):
        place += (step * 3 + 1) % 7 * 0.5
        place = max(place, 0.25) + min(step, 3) + len(str(step))
    return place


began = time.perf_counter()
walk(1_000_000)
total = 0
for row in range(1000):
    for column in range(1000):
        total += abs(row - column) % 7 + len(str(column))
print(time.perf_counter() - began)
