"""An ordinary MQTT client that asks for yesterday: paho-mqtt, with the property `from`.

python -m examples.mqtt_history HOST PORT
"""

import queue
import sys

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties


def main(host: str, port: int) -> None:
    messages: queue.Queue[mqtt.MQTTMessage] = queue.Queue()
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.on_message = lambda client, data, message: messages.put(message)
    client.connect(host, port)
    client.loop_start()
    for degrees in (19, 21, 24):
        client.publish("rooms/kitchen/temp", str(degrees), qos=1).wait_for_publish(10)

    since = Properties(PacketTypes.SUBSCRIBE)
    since.UserProperty = ("from", "-24h")  # what was published before we subscribed, too
    client.subscribe("rooms/#", options=mqtt.SubscribeOptions(qos=1), properties=since)
    for _ in range(3):
        message = messages.get(timeout=10)
        print(message.topic, message.payload.decode())
    client.disconnect()
    client.loop_stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
